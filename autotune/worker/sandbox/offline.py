"""Experiment trackers in a trial: they record in files, which are discarded, and send nothing."""

VARIABLES = {
    "WANDB_MODE": "offline",  # https://docs.wandb.ai/guides/track/environment-variables
    "MLFLOW_TRACKING_URI": "mlruns",  # https://mlflow.org/docs/latest/self-hosting/architecture/tracking-server
    "MLFLOW_REGISTRY_URI": "mlruns",  # the same page
    "COMET_MODE": "OFFLINE",  # https://huggingface.co/docs/transformers/main_classes/callback#transformers.integrations.CometCallback
    "COMET_START_ONLINE": "false",  # https://www.comet.com/docs/v2/guides/experiment-management/configure-sdk
    "NEPTUNE_MODE": "offline",  # https://docs.neptune.ai/logging/offline
    "TRACKIO_SPACE_ID": "",  # https://huggingface.co/docs/trackio/environment_variables
    "CLEARML_OFFLINE_MODE": "1",  # https://clear.ml/docs/latest/docs/configs/env_vars
}
"""Variable of the environment -> its value in a trial, unless the study's `env` has another."""
