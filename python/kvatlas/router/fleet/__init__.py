"""Changes of the fleet over HTTP: adding, removing and draining engines, kept over restarts and shared with peers."""

from kvatlas.router.fleet.keeper import FleetKeeper
from kvatlas.router.fleet.orders import Order, Orders
from kvatlas.router.fleet.peers import PeerOrders, PeerRouters
from kvatlas.router.fleet.state_file import StateFile

__all__ = ["FleetKeeper", "Order", "Orders", "PeerOrders", "PeerRouters", "StateFile"]
