"""Results as single HTML files that open with the network off."""

from kplan.report.acceptance import render_acceptance
from kplan.report.leaderboard import render_leaderboard
from kplan.report.page import render_report
from kplan.report.residuals import render_residuals

__all__ = ["render_acceptance", "render_leaderboard", "render_report", "render_residuals"]
