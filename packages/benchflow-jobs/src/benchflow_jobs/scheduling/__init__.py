"""The scheduler of a job: which slot runs next, and what is done after each end.

It has no clock, files or tasks of its own: a driver gives it events and carries out its actions.
"""

from .model_limit import (
    ModelLimit as ModelLimit,
)
from .model_limit import (
    ModelLimits as ModelLimits,
)
from .schedule import (
    Schedule as Schedule,
)
from .schedule import (
    SlotState as SlotState,
)
from .schedule import (
    VariantPlan as VariantPlan,
)
from .scheduler import (
    Action as Action,
)
from .scheduler import (
    Cancel as Cancel,
)
from .scheduler import (
    End as End,
)
from .scheduler import (
    Finish as Finish,
)
from .scheduler import (
    Latch as Latch,
)
from .scheduler import (
    PauseJob as PauseJob,
)
from .scheduler import (
    Policy as Policy,
)
from .scheduler import (
    Resolve as Resolve,
)
from .scheduler import (
    Scheduler as Scheduler,
)
from .scheduler import (
    Start as Start,
)
