"""Views, made in batches on the training device: pure functions of (seed, moment, image id, turn, view number)."""

from ccl.views.recipes import RECIPES as RECIPES
from ccl.views.recipes import Recipe as Recipe
from ccl.views.recipes import ViewOptions as ViewOptions
from ccl.views.viewer import ViewBatch as ViewBatch
from ccl.views.viewer import Viewer as Viewer
