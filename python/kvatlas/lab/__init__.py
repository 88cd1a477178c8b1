"""The laboratory: tools that measure and compare. Needs the extra `lab`: pip install 'kvatlas[lab]'.

`kvatlas.lab.replay` replays a trace over simulated engines in virtual time, `kvatlas.lab.traffic` converts other
records to traces, `kvatlas.lab.capacity` sizes fleets, `kvatlas.lab.demo` runs routing policies side by side over real
sockets, `kvatlas.lab.bench` measures designs of the index under an open-loop load, and `kvatlas.lab.designs` has those
designs. Nothing else in kvatlas imports these modules.
"""

from pkgutil import extend_path

from kvatlas._extras import require

__path__ = extend_path(__path__, __name__)

require("kvatlas.lab", "lab", ("matplotlib", "aiohttp", "msgspec", "zmq"))
