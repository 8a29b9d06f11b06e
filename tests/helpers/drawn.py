"""Tables to draw, and readers of what a figure shows."""

from itertools import product

import numpy as np
import pandas as pd


def every(**levels):
    """A table with a row for every combination of these values, the last changing first."""
    return pd.DataFrame(list(product(*levels.values())), columns=list(levels))


def with_ends(table, down, up, *columns):
    """The table with an interval about each of these columns, from `down` below to `up` above it."""
    ends = {f"{column}_low": table[column] - down for column in columns}
    return table.assign(**ends, **{f"{column}_high": table[column] + up for column in columns})


def titles(figure):
    """The titles of the panels that have one."""
    return [title for axis in figure.axes if (title := axis.get_title(loc="left"))]


def texts(labels):
    return [label.get_text() for label in labels]


def legend(drawn):
    """The labels in the single legend of a figure (outside its panels), or in that of a panel."""
    (found,) = drawn.legends if hasattr(drawn, "legends") else [drawn.get_legend()]
    return texts(found.get_texts())


def xy(drawn):
    """Points of a line or of an `errorbar`, shape (points, 2)."""
    return np.asarray((drawn[0] if isinstance(drawn, tuple) else drawn).get_xydata(), float)


def points(axis, label):
    """Points of the line or the error bars with a label, shape (points, 2)."""
    handles, labels = axis.get_legend_handles_labels()
    return xy(handles[labels.index(label)])


def bars(container, across=False):
    """Ends of the error bars of an `errorbar`, vertical or across, shape (points, 2)."""
    return np.array([segment[:, 0 if across else 1] for segment in container[2][0].get_segments()])
