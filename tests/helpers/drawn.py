"""What a figure shows, read back from it."""

import numpy as np


def titles(figure):
    return [axis.get_title(loc="left") for axis in figure.axes]


def legend(figure):
    """What the one legend below a figure names."""
    (found,) = figure.legends
    return [text.get_text() for text in found.get_texts()]


def points(axis, label):
    """Points of the line or of the error bars of a label, shape (points, 2)."""
    handles, labels = axis.get_legend_handles_labels()
    handle = handles[labels.index(label)]
    return np.asarray((handle[0] if isinstance(handle, tuple) else handle).get_xydata(), float)


def bars(container):
    """Where the error bars of an `errorbar` begin and end, shape (points, 2)."""
    return np.array([segment[:, 1] for segment in container[2][0].get_segments()])
