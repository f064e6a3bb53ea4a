"""Traces as others publish or record them. A form of text is a module here with a `FORM`, and a line below."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from testbed.trace.importing import Form

#: Modules of this package, in the order in which `testbed trace import --help` lists their forms.
_MODULES = (
    "pensieve",
    "cellular",
    "rtt_csv",
    "ping",
    "iperf3",
)

#: All forms of text by name. A capture is no text: `testbed.trace.forms.pcap` imports it.
FORMS: Mapping[str, Form] = {
    form.name: form for form in (import_module(f"{__name__}.{module}").FORM for module in _MODULES)
}
