#!/bin/sh
for digit in 2 0 1; do
    dial "$digit"
done
