"""The `autotune_*` tables, by noun."""

from storage.attempts import AttemptRecords
from storage.database import Database
from storage.environments import Environments, NoiseRecords
from storage.events import Author, Events
from storage.leases import Leases
from storage.messages import Messages
from storage.order import Quotas
from storage.recommendations import Recommendations
from storage.studies import Studies
from storage.transactions import Transactions


class Repository:
    """Studies, leases, attempts and what belongs to them, in one database."""

    def __init__(self, database: Database, command: str = "") -> None:
        """Open the tables.

        Args:
            command: command of autotune that works with them, for the history.
        """
        transactions = Transactions(database)
        self.database = database
        self.events = Events(database, transactions, Author.of_this_process(command))
        self.quotas = Quotas(transactions)
        self.studies = Studies(database, transactions, self.events)
        self.leases = Leases(transactions)
        self.attempts = AttemptRecords(transactions)
        self.environments = Environments(transactions)
        self.noise = NoiseRecords(transactions)
        self.messages = Messages(transactions)
        self.recommendations = Recommendations(transactions)
