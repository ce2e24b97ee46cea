"""Pure formulas: arrays in, arrays out."""
