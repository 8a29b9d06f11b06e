"""Text: documents → corpus → token rows with folds. Told by notebooks 01 and 05."""
