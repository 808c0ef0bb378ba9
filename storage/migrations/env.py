"""Alembic's entry: migrations run on the connection that the Database hands over."""

from alembic import context

from storage.models import Base
from storage.schema import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
