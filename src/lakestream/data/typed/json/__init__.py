"""The JSON codec, schema inference, text style."""
