"""The book's figures: `style` for the shared look, one module a chapter."""
