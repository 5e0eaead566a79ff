"""A callgrind profile: what each function cost and how often it was called. The format is in Valgrind's manual
("Callgrind Format Specification")."""

import collections
import dataclasses


@dataclasses.dataclass
class Profile:
    """The counts between two moments of a process, all threads together."""

    instructions: int = 0
    # By function: its own instructions, those with everything that it calls, and how often it was called.
    own: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    inclusive: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    calls: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    # How often one function called another, by (caller, callee).
    arcs: collections.Counter = dataclasses.field(default_factory=collections.Counter)

    def called(self, pattern):
        """How often functions were called whose names match this regular expression."""
        return sum(count for name, count in self.calls.items() if pattern.search(name))

    def beyond(self, other):
        """What this has more than another."""
        own, inclusive, calls, arcs = (mine.copy() for mine in (self.own, self.inclusive, self.calls, self.arcs))
        own.subtract(other.own), inclusive.subtract(other.inclusive), calls.subtract(other.calls), arcs.subtract(other.arcs)
        return Profile(self.instructions - other.instructions, own, inclusive, calls, arcs)

    def callers(self, pattern):
        """Who called functions whose names match, how often."""
        found = collections.Counter()
        for (caller, callee), count in self.arcs.items():
            if count > 0 and pattern.search(callee):
                found[caller] += count
        return found


def parse(path):
    """The profile in a file that callgrind has dumped."""
    profile, names, events = Profile(), {}, []
    function = callee = arc = None

    def name(field):
        """A name, which is written out only where its number first appears."""
        number, _, text = field.rstrip("\n").partition(" ")
        if text:
            names[number] = text
        return names[number]

    with open(path, errors="replace") as lines:
        for line in lines:
            if line[0] in "0123456789+-*":
                costs = dict(zip(events, map(int, line.split()[1:])))
                if arc is not None:
                    # What a call cost, which the callee's own lines count too.
                    if callee != function:
                        profile.inclusive[callee] += costs.get("Ir", 0)
                    profile.calls[callee] += arc
                    profile.arcs[function, callee] += arc
                    arc = None
                    continue
                profile.own[function] += costs.get("Ir", 0)
                profile.instructions += costs.get("Ir", 0)
            elif line.startswith("fn="):
                function = name(line[3:])
            elif line.startswith("cfn="):
                callee = name(line[4:])
            elif line.startswith("calls="):
                arc = int(line[6:].split()[0])
            elif line.startswith("events:"):
                events = line.split()[1:]
    if not events:
        raise ValueError(f"{path} is no profile of callgrind")
    return profile
