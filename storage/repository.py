"""The `autotune_*` tables, by noun."""

from storage.attempts import AttemptRecords
from storage.database import Database
from storage.environments import Environments
from storage.leases import Leases
from storage.messages import Messages
from storage.noise import NoiseRecords
from storage.recommendations import Recommendations
from storage.studies import Studies
from storage.transactions import Transactions


class Repository:
    """Studies, leases, attempts and what belongs to them, in one database."""

    def __init__(self, database: Database) -> None:
        transactions = Transactions(database)
        self.database = database
        self.studies = Studies(database, transactions)
        self.leases = Leases(transactions)
        self.attempts = AttemptRecords(transactions)
        self.environments = Environments(transactions)
        self.noise = NoiseRecords(transactions)
        self.messages = Messages(transactions)
        self.recommendations = Recommendations(transactions)
