"""What keys of job files and site profiles have in common: types, and the words for mistakes."""
