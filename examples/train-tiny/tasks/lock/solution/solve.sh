#!/bin/sh
for digit in 1 0 1; do
    dial "$digit"
done
