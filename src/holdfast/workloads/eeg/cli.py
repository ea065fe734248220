"""`holdfast eeg`: the EEG workload's own tools, from the bucket to the leaderboard.

holdfast eeg simulate ./data
holdfast eeg check ./data
holdfast eeg prepare ./data ./cache

A tool is a row of the table below and a function that adds its parser; nothing else changes.
"""

from __future__ import annotations

from typing import Any

from holdfast.console.tools import Tool, Tools
from holdfast.console.usage import Parser

TOOLS = {
    "download": Tool(
        "holdfast.workloads.eeg.download_command", "download recordings (OpenNeuro, fcp-indi, competition)"
    ),
    "simulate": Tool(
        "holdfast.workloads.eeg.data_commands:add_simulate", "write a simulated data set with known truth"
    ),
    "check": Tool("holdfast.workloads.eeg.data_commands:add_check", "check a data set for what breaks other tools"),
    "prepare": Tool(
        "holdfast.workloads.eeg.data_commands:add_prepare", "filter recordings and cut windows for training"
    ),
    "score": Tool(
        "holdfast.workloads.eeg.score_command:add_score", "show the scores of runs, beside those of guessing"
    ),
    "search": Tool("holdfast.workloads.eeg.search_command:add_search", "search hyper-parameters with supervised runs"),
    "submit": Tool(
        "holdfast.workloads.eeg.submit_command:add_submit", "build and test the zip file for the competition"
    ),
}


def add_parser(subparsers: Any) -> Parser:
    """Add the command to the command line."""
    return Tools("eeg", "Download, check and prepare EEG recordings, score runs, and build a submission.", TOOLS)
