"""Networks of all kinds, small: does the sentinel accuse a right device, and does it find wrong kernels?"""
