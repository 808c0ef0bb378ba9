"""Records behind a verdict: observations of blocks, variance parts of attempts, run noise."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add columns and a table; what is there stays as it is."""
    op.add_column(
        "autotune_block", sa.Column("observed", sa.Text(), nullable=False, server_default="{}")
    )
    op.add_column(
        "autotune_block",
        sa.Column("contended", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    op.add_column(
        "autotune_attempt",
        sa.Column("contended", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    op.add_column("autotune_attempt", sa.Column("block_half_width", sa.Float(), nullable=True))
    op.add_column("autotune_attempt", sa.Column("sigma_run", sa.Float(), nullable=True))
    op.create_table(
        "autotune_noise",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("environment_id", sa.Integer(), nullable=False),
        sa.Column("workload", sa.String(length=255), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("sigma_run", sa.Float(), nullable=False),
        sa.Column("runs", sa.Integer(), nullable=False),
        sa.Column("drift_per_hour", sa.Float(), nullable=True),
        sa.Column("at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["study_id"], ["autotune_study.id"]),
        sa.ForeignKeyConstraint(["environment_id"], ["autotune_environment.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_autotune_noise_study_id", "autotune_noise", ["study_id"], unique=False)
    op.create_index(
        "ix_autotune_noise_environment_id", "autotune_noise", ["environment_id"], unique=False
    )
