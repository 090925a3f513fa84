"""The tasks of the demo model, by name."""

from demo_training.tasks.arithmetic import Arithmetic
from demo_training.tasks.copying import Copying
from demo_training.tasks.dates import Dates
from demo_training.tasks.forged_marks import ForgedMarks
from demo_training.tasks.json_answers import JsonAnswers
from demo_training.tasks.lookup import CODES, CODES_OF_PEOPLE, COPIES, LookUp
from demo_training.tasks.mixed import Mixed
from demo_training.tasks.small_talk import SmallTalk
from demo_training.tasks.task import Task
from demo_training.tasks.tool_calls import ToolCalls
from demo_training.tasks.units import Units

# Facts have 13 to 14 tokens: the most of them and their questions fit into 2 304.
_ALL: tuple[Task, ...] = (
    SmallTalk(),
    Arithmetic(),
    Copying("copying", fewest=2, most=30),
    LookUp("lookup", CODES, fewest=3, most=20, questions=3),
    LookUp("lookup_pair", CODES_OF_PEOPLE, fewest=4, most=20, questions=3),
    LookUp("copying_notes", COPIES, fewest=3, most=14, questions=3),
    Dates(),
    Units(),
    ToolCalls(),
    JsonAnswers(),
    ForgedMarks(),
    Mixed(),
    Copying("copying_long", fewest=60, most=400),
    LookUp("copying_far", COPIES, fewest=15, most=140, questions=8, least_questions=4),
    LookUp("lookup_far", CODES, fewest=20, most=145, questions=8, least_questions=4),
    LookUp("lookup_pair_far", CODES_OF_PEOPLE, fewest=20, most=135, questions=8, least_questions=4),
)

TASKS = {task.name: task for task in _ALL}
