"""The `torch.distributed` backend `wan`."""
