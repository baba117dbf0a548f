#!/bin/sh
printf '%s\n' apple fig pear > /workspace/words.txt
