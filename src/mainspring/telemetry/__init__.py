"""What a node tells about its work: log lines, spans, histograms, and what caused what.

- `causation`: in whose name something is done, and the headers that carry it on
- `spans`: spans of OpenTelemetry, where an SDK is configured
- `log_lines`: log lines as text or JSON, with the message that is being handled
- `kept_errors`: what is kept of an error with the attempt that failed
- `histogram`: sizes and durations, counted by how large they were
"""

from typing import TYPE_CHECKING

from mainspring.lazy_imports import lazy_imports, offer
from mainspring.telemetry.causation import CAUSATION as CAUSATION
from mainspring.telemetry.causation import CORRELATION as CORRELATION
from mainspring.telemetry.causation import Cause as Cause
from mainspring.telemetry.causation import Entered as Entered
from mainspring.telemetry.causation import WorkContext as WorkContext
from mainspring.telemetry.causation import causation_headers as causation_headers
from mainspring.telemetry.causation import current_correlation as current_correlation
from mainspring.telemetry.causation import handling as handling
from mainspring.telemetry.causation import with_causation as with_causation
from mainspring.telemetry.histogram import Histogram as Histogram
from mainspring.telemetry.histogram import nanoseconds as nanoseconds
from mainspring.telemetry.histogram import numbers as numbers
from mainspring.telemetry.kept_errors import FAILURE as FAILURE
from mainspring.telemetry.kept_errors import KeptError as KeptError
from mainspring.telemetry.kept_errors import error_keeping as error_keeping
from mainspring.telemetry.kept_errors import failure_header as failure_header
from mainspring.telemetry.spans import TRACEPARENT as TRACEPARENT
from mainspring.telemetry.spans import TRACESTATE as TRACESTATE
from mainspring.telemetry.spans import OpenSpan as OpenSpan
from mainspring.telemetry.spans import Recorder as Recorder
from mainspring.telemetry.spans import configured_provider as configured_provider
from mainspring.telemetry.spans import messaging as messaging
from mainspring.telemetry.spans import trace_headers as trace_headers
from mainspring.telemetry.spans import tracing as tracing

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
offer(globals())
__getattr__ = lazy_imports(globals(), _HOMES)
