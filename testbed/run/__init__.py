"""An experiment's life: it owns the emulation and the controller, makes events happen, and gives the verdict."""
