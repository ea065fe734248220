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
        "holdfast.workloads.eeg.download_command", "get recordings from OpenNeuro, fcp-indi or the competition's copies"
    ),
    "simulate": Tool("holdfast.workloads.eeg.data_commands:add_simulate", "write a data set with known truth"),
    "check": Tool("holdfast.workloads.eeg.data_commands:add_check", "what in a data set would break other tools"),
    "prepare": Tool("holdfast.workloads.eeg.data_commands:add_prepare", "filtered windows in a memory-mapped cache"),
    "score": Tool("holdfast.workloads.eeg.score_command:add_score", "what runs scored, beside what guessing gets"),
    "search": Tool("holdfast.workloads.eeg.search_command:add_search", "hyper-parameters, by supervised runs"),
    "submit": Tool("holdfast.workloads.eeg.submit_command:add_submit", "the zip for the competition, built and tried"),
}


def add_parser(subparsers: Any) -> Parser:
    """Add the command to the command line."""
    return Tools("eeg", "EEG: from a public bucket to a score.", TOOLS)
