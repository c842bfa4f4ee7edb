"""Requests that are refused."""

from http import HTTPStatus

from estimator.errors import EstimatorError


class RequestError(EstimatorError):
    """A request cannot be served; the message is one line and complete, `status` the HTTP status that goes with it."""

    def __init__(self, message: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.status = status
