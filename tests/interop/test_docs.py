"""Links between the pages lead somewhere."""

import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
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


if __name__ == "__main__":
    unittest.main()
