"""An experiment on simulated time: rounds by the planning room's simulator, the controller as it is in emulation."""
