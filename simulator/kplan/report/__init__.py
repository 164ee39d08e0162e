"""A plan as one HTML file that opens with the network off."""

from kplan.report.page import render_report

__all__ = ["render_report"]
