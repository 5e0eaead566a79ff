"""A day's work on mounts (guest/bin/work), and what it clones and builds: a git repository with a small project in C."""

import pathlib
import subprocess

import guest

PROJECT = {
    "Makefile": "CC = gcc\nCFLAGS = -O1 -Wall\nanswer: main.o question.o\n\t$(CC) -o $@ $^\nmain.o question.o: question.h\n",
    "question.h": "int question(int answer);\n",
    "question.c": '#include "question.h"\nint question(int answer) { return answer == 42; }\n',
    "main.c": '#include <stdlib.h>\n#include "question.h"\n'
    "int main(int argc, char **argv) { return argc == 2 && question(atoi(argv[1])) ? 0 : 1; }\n",
}


def repository(folder):
    """A bare repository with a small C project and some hundred other files."""
    project = pathlib.Path(folder) / "project"
    files = dict(PROJECT, **{f"notes/{n % 7}/note-{n}.txt": f"note {n}\n" * n for n in range(150)})
    for name, text in files.items():
        file = project / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    git = ["git", "-C", project, "-c", "user.name=w", "-c", "user.email=w@w", "-c", "init.defaultBranch=main"]
    for command in [["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]]:
        subprocess.run([*git, *command], check=True)


def work(case, transport, mounts):
    """A guest does a day's work on each of the mounts: a name, and the arguments of mount."""
    job = "".join(f"work {name} {transport} /lab/project {how}\n" for name, how in mounts.items())
    with guest.serving() as server, guest.Guest(job + "true", seconds=3000) as machine:
        repository(machine.folder)
        machine.finish()
        for name in mounts:
            with case.subTest(mount=name):
                passed = f"PASS {name}" in machine.said
                case.assertTrue(passed, machine.report() + server.log_text()[-4000:])
        case.assertEqual(list(server.folder.iterdir()), [], "something was left behind")
