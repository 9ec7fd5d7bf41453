"""What a node tells about itself: log lines, spans, histograms."""
