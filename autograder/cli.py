"""Commands for contributors and instructors: python -m autograder …

Each command imports what it needs when it runs.
"""

import argparse

from autograder.course import ROOT


def main(arguments=None):
    """Run the command that the arguments name; the exit status."""
    if not (ROOT / "solutions").exists():
        print(
            "This is the student edition, and only the full edition has these "
            "commands: run `make` to see what this one offers."
        )
        return 2
    options = _parser().parse_args(arguments)
    return options.run(options) or 0


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m autograder",
        description="Transformers and Attention: build, verify, grade.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    build = commands.add_parser(
        "build", help="write notebooks and goldens from solutions/"
    )
    build.add_argument("lessons", nargs="*", metavar="LESSON")
    build.set_defaults(run=_build)

    verify = commands.add_parser(
        "verify", help="check that lessons, exercises and answers agree"
    )
    verify.add_argument(
        "only",
        nargs="*",
        metavar="NAME",
        help="lessons or exercises to look at (default: all)",
    )
    verify.add_argument(
        "--matrix",
        action="store_true",
        help="print which property catches which mistake",
    )
    verify.set_defaults(run=_verify)

    grade = commands.add_parser(
        "grade",
        help="grade a class's notebooks",
        description="Grade what a class handed in: a folder, a zip or tar "
        "archive, an LMS's download or single files.",
    )
    grade.add_argument(
        "submissions", metavar="SUBMISSIONS", help="folder, archive or file"
    )
    grade.add_argument(
        "--out",
        metavar="FOLDER",
        help="where results go (default: _build/nbgrader)",
    )
    grade.add_argument(
        "--json", action="store_true", help="print one JSON record a notebook"
    )
    grade.add_argument(
        "--force",
        action="store_true",
        help="grade unchanged submissions again, too",
    )
    grade.add_argument(
        "--require-sandbox",
        action="store_true",
        help="grade nothing where bubblewrap does not work",
    )
    grade.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="notebooks at a time (default: two more than cores)",
    )
    grade.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="grade on a Dask cluster, e.g. tcp://host:8786",
    )
    grade.set_defaults(run=_grade)

    edition = commands.add_parser(
        "student-edition", help="the course without answers, as a zip"
    )
    edition.set_defaults(run=_edition)

    bench = commands.add_parser(
        "bench", help="how long checks and grading take"
    )
    bench.set_defaults(run=_bench)
    return parser


def _build(options):
    from autograder.build import build
    from autograder.course import SourceError

    try:
        build(options.lessons)
    except SourceError as error:
        print(error)
        return 1


def _verify(options):
    from autograder.verify import main

    return 1 if main(options.only, options.matrix) else 0


def _grade(options):
    from autograder.grading.command import main

    return main(options)


def _edition(options):
    from autograder.edition import write_edition

    print(f"Wrote {write_edition()}")


def _bench(options):
    from autograder.bench import main

    main()
