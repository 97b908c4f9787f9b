"""The operators written plainly in NumPy: what every other variant is checked against.

Any float dtype; the result has the dtype of the inputs. Run them in float64 for an oracle.
Shapes that do not fit raise ValueError (see `shapes` and `shapes2d`). A fused operator's reference is the composition
of the plain ones.
"""

from charcnn.ops.reference.gradients import *  # noqa: F403
from charcnn.ops.reference.gradients_alone import *  # noqa: F403
from charcnn.ops.reference.gradients_images import *  # noqa: F403
from charcnn.ops.reference.gradients_transformer import *  # noqa: F403
from charcnn.ops.reference.images import *  # noqa: F403
from charcnn.ops.reference.sequences import *  # noqa: F403
from charcnn.ops.reference.values import *  # noqa: F403
