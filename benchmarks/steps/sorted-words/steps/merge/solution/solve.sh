#!/bin/sh
sort /workspace/words.txt /workspace/more.txt > /workspace/all.txt
mv /workspace/all.txt /workspace/words.txt
