"""The way to the memory roof, under its old name."""

from labs_common.stages import ROOF, ROW_LAYOUTS

__all__ = ["ROOF", "ROW_LAYOUTS"]
