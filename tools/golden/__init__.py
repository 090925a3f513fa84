"""Parts of `tools/check_golden.py`: comparing the product with a folder of independently computed
tensors."""
