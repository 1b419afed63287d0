# The same terms, summed in another order.
# problem: kl_div
# options: --no-time

import torch


class ModelNew(torch.nn.Module):
    def forward(self, predictions, targets):
        terms = torch.xlogy(targets, targets) - targets * predictions.log()
        return terms.flip(0).sum(0).sum() / predictions.shape[0]
