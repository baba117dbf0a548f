#!/bin/sh
for digit in 2 0 1 2; do
    dial "$digit"
done
