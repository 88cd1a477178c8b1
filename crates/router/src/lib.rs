//! The byte path of the router: clients on one side, engines on the other.
