"""Views: augmentation recipes, and the viewer that makes views in batches on the training device.

Crop, flip and resize are one batched resampling; colour, grey and blur follow as batched tensor operations with
parameters for each image. A view is a pure function of (seed, moment, image id, turn, view number): it does not depend
on the batch an image is in, on the number of loader workers or on how often the run was interrupted.
"""

from ccl.views.recipes import RECIPES as RECIPES
from ccl.views.recipes import Recipe as Recipe
from ccl.views.recipes import ViewOptions as ViewOptions
from ccl.views.viewer import ViewBatch as ViewBatch
from ccl.views.viewer import Viewer as Viewer
