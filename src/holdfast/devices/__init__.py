"""What is here, and what can it do?"""
