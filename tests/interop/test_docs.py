"""Links between the pages lead somewhere, and what they name is there."""

import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(r"(?<![\w/.-])(?:crates|tests|docs|fuzz|packaging)/[\w./-]*\w")
NAME = re.compile(r"`(?:\w+::)*(\w+)`")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)


def anchors(page):
    """The anchors that GitHub gives a page's headings."""
    found = {}
    for heading in HEADING.findall(FENCE.sub("", page.read_text())):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        count = found.get(slug, 0)
        found[slug] = count + 1
        if count:
            found[f"{slug}-{count}"] = 1
    return found


class Docs(unittest.TestCase):
    def test_links_lead_to_files_and_headings(self):
        listed = subprocess.run(["git", "-C", ROOT, "ls-files", "*.md"], capture_output=True, text=True)
        pages = [ROOT / name for name in listed.stdout.split()] or [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
        wrong, followed = [], 0
        for page in pages:
            text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))
            for link in LINK.findall(text):
                if re.match(r"[a-z]+:", link):
                    continue
                followed += 1
                file, _, anchor = link.partition("#")
                target = (page.parent / file).resolve() if file else page
                if not target.exists() or anchor and anchor not in anchors(target):
                    wrong.append(f"{page.relative_to(ROOT)}: {link}")
        self.assertEqual(wrong, [])
        self.assertGreater(followed, 100)

    def test_files_that_pages_name_are_there(self):
        # That page names files of other projects, too.
        pages = [page for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")] if page.name not in ("CHANGELOG.md", "interop.md")]
        named = {(page.name, path) for page in pages for path in PATH.findall(page.read_text())}
        self.assertEqual([], sorted((page, path) for page, path in named if not (ROOT / path).exists()))
        self.assertGreater(len(named), 20)

    def test_tests_and_limits_that_the_security_page_names_are_there(self):
        sources = "".join(path.read_text() for kind in ("crates/**/*.rs", "tests/**/*.py") for path in ROOT.glob(kind))
        tests = set(re.findall(r"\b(?:fn|def|pub) (?:test_)?(\w+)", sources))
        limits = set(re.findall(r"\b(?:const|static) ([A-Z][A-Z0-9_]+)\b", sources))
        named = set(NAME.findall((ROOT / "docs" / "security.md").read_text()))
        named_tests = {name.removeprefix("test_") for name in named if re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+){3,}", name)}
        named_limits = {name for name in named if re.fullmatch(r"[A-Z][A-Z0-9]+(_[A-Z0-9]+)+", name)}
        self.assertEqual([], sorted(named_tests - tests) + sorted(named_limits - limits))
        self.assertGreater(min(len(named_tests), len(named_limits)), 50)


if __name__ == "__main__":
    unittest.main()
