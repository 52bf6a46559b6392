"""Views: augmentation recipes, and the viewer that makes views in batches on the training device.

A view is a pure function of (seed, moment, image id, turn, view number), whatever batch the image is in.
"""

from ccl.views.recipes import RECIPES as RECIPES
from ccl.views.recipes import Recipe as Recipe
from ccl.views.recipes import ViewOptions as ViewOptions
from ccl.views.viewer import ViewBatch as ViewBatch
from ccl.views.viewer import Viewer as Viewer
