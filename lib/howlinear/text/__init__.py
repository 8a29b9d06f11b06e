"""Text: documents → corpus → token rows with folds. Explained in notebooks 01 and 05."""
