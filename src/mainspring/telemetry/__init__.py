"""What a node tells about its work: log lines, spans, histograms, and what caused what.

- `causation`: in whose name something is done, and the headers that carry it on
- `spans`: spans of OpenTelemetry, where an SDK is configured
- `log_lines`: log lines as text or JSON, with the message that is being handled
- `histogram`: sizes and durations, counted by how large they were
"""

from typing import TYPE_CHECKING

from mainspring.lazy_imports import lazy_imports
from mainspring.telemetry.causation import (
    CAUSATION,
    CORRELATION,
    Cause,
    Entered,
    WorkContext,
    causation_headers,
    current_correlation,
    handling,
    with_causation,
)
from mainspring.telemetry.histogram import Histogram, nanoseconds, numbers
from mainspring.telemetry.spans import (
    TRACEPARENT,
    OpenSpan,
    Recorder,
    configured_provider,
    messaging,
    tracing,
)

if TYPE_CHECKING:
    from mainspring.telemetry.log_lines import JsonLines as JsonLines
    from mainspring.telemetry.log_lines import TextLines as TextLines
    from mainspring.telemetry.log_lines import WithMessage as WithMessage
    from mainspring.telemetry.log_lines import configure_logging as configure_logging
    from mainspring.telemetry.log_lines import lines_written as lines_written
    from mainspring.telemetry.log_lines import write_lines as write_lines

_HOMES = {
    "mainspring.telemetry.log_lines": "JsonLines TextLines WithMessage configure_logging lines_written write_lines",
}
__all__ = [
    "CAUSATION",
    "CORRELATION",
    "TRACEPARENT",
    "Cause",
    "Entered",
    "Histogram",
    "OpenSpan",
    "Recorder",
    "WorkContext",
    "causation_headers",
    "configured_provider",
    "current_correlation",
    "handling",
    "messaging",
    "nanoseconds",
    "numbers",
    "tracing",
    "with_causation",
]
__getattr__ = lazy_imports(globals(), _HOMES)
