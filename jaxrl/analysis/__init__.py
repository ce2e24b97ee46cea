"""Compare, plot and film finished runs and searches, on self-contained HTML pages."""

__all__ = [
    "atari57",
    "comparison",
    "comparison_page",
    "figures",
    "importance",
    "page",
    "records",
    "sweep_axes",
    "sweep_figures",
    "sweep_report",
    "sweep_tables",
    "video",
]
