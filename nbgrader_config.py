"""The course as nbgrader sees it; read by every nbgrader command here."""

import os
import pathlib

from autograder.grading import recorded_seed

root = pathlib.Path(__file__).parent
work = root / "_build" / "nbgrader"

c = get_config()  # noqa: F821 - nbgrader defines it

c.CourseDirectory.root = str(root)
c.CourseDirectory.course_id = "transformers-and-attention"
c.CourseDirectory.source_directory = "_build/nbgrader/source"
c.CourseDirectory.release_directory = "exercises"
c.CourseDirectory.submitted_directory = "_build/nbgrader/submitted"
c.CourseDirectory.autograded_directory = "_build/nbgrader/autograded"
c.CourseDirectory.feedback_directory = "_build/nbgrader/feedback"
c.CourseDirectory.solution_directory = "_build/nbgrader/solution"
c.CourseDirectory.db_url = f"sqlite:///{work / 'gradebook.db'}"

c.ClearSolutions.code_stub = {
    "python": "# Your answer goes here.\nraise NotImplementedError"
}

# Kernels inherit it, so that stock nbgrader draws the same fresh inputs as
# `python -m autograder grade`.
os.environ.setdefault("AUTOGRADER_SEED", recorded_seed(work))
