"""All kinds of attacks of clients."""

from tests.process.attack.kinds import bodies, names, one, two

ATTACKS = (*one.ATTACKS, *two.ATTACKS, *bodies.ATTACKS, *names.ATTACKS)
